"""What a layer computes besides attention: products, experts, linear attention."""
