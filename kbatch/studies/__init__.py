"""Studies: published tables on batch size, made again on this machine.

A study is a list of cells, one training each, and the tables and verdicts that follow from them.
Every cell is kept as a record, so that no training is made twice.
"""
