"""What Tally costs: one price list, the units that Tally takes, and the bills that follow from both.

prices.toml, prices   the list, and a bill by service
units                 what an operation, a batch and a quiet minute take, as `make bench` measures it
template              what of a stack costs money without a request, read from its CloudFormation template
traffic               a month: of a stack alone, or with changes and reads
worst_day             all anonymous routes at their throttles for a day
command               `tally cost`
page                  the tables of docs/cost.md
"""
