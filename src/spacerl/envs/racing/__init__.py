"""Car racing from pixels: Gymnasium's dynamics and track, with observations drawn quickly."""
