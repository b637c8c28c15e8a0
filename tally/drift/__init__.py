"""Drift: does each tally say what was counted, and if not, who repairs it?"""
