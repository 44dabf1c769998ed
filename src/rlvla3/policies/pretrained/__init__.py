"""Published checkpoints: what lies in a folder, and how its tensors get into a network of ours."""
