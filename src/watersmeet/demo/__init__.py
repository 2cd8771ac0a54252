"""The demo: made-up orders and deliveries whose join is known beforehand."""
