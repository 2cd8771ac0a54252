"""Forecasts of state, time and memory: cost formulas over a plan, with measured constants."""
