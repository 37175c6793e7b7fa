"""What attention's design does to the Hessian at initialisation."""
