"""What the Python tests share."""
