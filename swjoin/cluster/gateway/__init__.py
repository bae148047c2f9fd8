"""The gateway: intake, mini-buffers, slots, overload, deliveries."""
