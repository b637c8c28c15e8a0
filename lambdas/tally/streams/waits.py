"""The waits of the ledger in minutes, in one place. They scale with the length of a minute (settings.minute_s)."""

LATE = 1  # after its own, in which a change may be committed: retries end after 3 s; frozen writers get a minute
SETTLE = 5  # judged ones that a drift must stand to be confirmed: one that comes of a late commit lasts two
START = 2  # from the first sweep to the first minute that may be judged: older ones may lack a half
SKEW = 1 / 12  # how far clocks and DynamoDB's stamps may differ: 5 s
LISTING = 1  # how late DynamoDB may list a new shard
FRESH = 1 / 6  # how old noted evidence must be to be used: 10 s
UNREACHED = 1.5  # how long no pulse may reach a shard before the sweep reads the shard itself
