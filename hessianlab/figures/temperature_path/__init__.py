"""From uniform to one-hot attention by temperature: attention, the derivative of softmax, and the blocks."""
