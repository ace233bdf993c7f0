"""KV in host memory and on disk: when it leaves the device, and when it comes back."""
