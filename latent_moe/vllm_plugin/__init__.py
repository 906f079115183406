"""A latent MoE language model for vLLM: K3's MoE structure around vLLM's own attention, linear and expert layers."""
