"""What Tally costs: `tally cost`.

prices.toml, prices   the price list, and a bill by service
units                 what changes, reads, batches and quiet minutes take, as tests and `make bench` measure it
usage                 what a month takes of everything that AWS bills
command               `tally cost`
page                  `make cost`: runs the commands of docs/cost.md again
"""
