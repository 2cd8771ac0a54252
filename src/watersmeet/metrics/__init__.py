"""What a running query tells about itself."""
