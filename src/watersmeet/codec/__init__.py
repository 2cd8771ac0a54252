"""The Avro codec, which reads and writes a column at a time with numpy. It knows nothing of the rest of Watersmeet."""
