"""What Tally costs: one price list, the units that Tally takes, and the bills that follow from both.

prices.toml, prices   the list, and a bill by service
units                 what an operation, a batch and a quiet minute take, as `make bench` measures it
usage                 what a month takes, and a day of strangers; what of a stack costs money while nobody calls
command               `tally cost`
page                  `make cost`: reads the templates, and writes the tables of docs/cost.md
"""
