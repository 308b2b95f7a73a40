"""The point robot: Point-Circle and Point-Gather."""
