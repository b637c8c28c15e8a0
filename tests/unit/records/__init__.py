"""Tests of records with atomic counters."""
