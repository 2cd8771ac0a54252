"""The state engine: spines of sorted runs, their layout, stored form and cache, and the frame of a step."""
