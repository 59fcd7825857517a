"""Operations on tensors: a plain-torch reference each, and fast versions beside it."""
