"""Stream consumers: records applied exactly once, rolled up and booked, or set aside."""
