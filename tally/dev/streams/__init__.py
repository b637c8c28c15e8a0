"""Event source mappings at work: `Pump` reads the streams and invokes functions; `Positions` remembers the way."""
