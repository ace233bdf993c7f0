"""A batch on its way to the device: its shape, its indices, and how attention is split over the card."""
