"""What things cost: FLOPs, bytes and parameters, counted on a model or foreseen from shapes."""
