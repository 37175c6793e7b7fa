"""What experiments found, in sentences with numbers: every function takes a result and returns one to three of them."""
