"""How large it gets and how long it takes: laws of cost over a plan, with what was measured as their constants."""
