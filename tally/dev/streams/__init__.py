"""Event source mappings at work: `Pump` reads the streams and invokes functions; `Positions` stores its progress."""
