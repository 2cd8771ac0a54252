"""The parts that every operator is built from: contract, watermarks, conditions, matching, routing."""
