// Activation functions of f32 vectors. NaN stays NaN; an infinity gives an infinity, NaN or (relu) 0.

// x / (1 + exp(-t)), by the exp of -|t| alone: it cannot overflow.
LEGATO_INLINE Vf times_sigmoid(Vf x, Vf t) {
  const Vf e = exp(zero() - abs(t));
  return x * select(less_bits(t, zero()), e, splat(1.0f)) * inverse(splat(1.0f) + e);
}

// x Phi(x) with the tail Phi(-z sqrt 2) = erfc(z) / 2 = t P(t) exp(-z^2), t = 1 / (1 + z / 2): a minimax fit of degree
// 8 on z in [0, 13], relative error 5e-8 (2e-7 in f32), so that small results are as exact as large ones.
LEGATO_INLINE Vf gelu(Vf x) {
  constexpr float kTail[] = {-0.0296931341f, 0.143061563f, -0.245202422f, 0.140865922f, -0.0145738712f,
                             0.101876147f,   0.121417575f, 0.141206056f,  0.141042173f};
  const Vf z = min(splat(13.0f), abs(x) * splat(0.707106781f));
  const Vf t = inverse(fma(z, splat(0.5f), splat(1.0f)));
  Vf p = splat(kTail[0]);
  LEGATO_UNROLL for (int32_t i = 1; i < 9; ++i) p = fma(p, t, splat(kTail[i]));
  const Vf tail = p * t * exp(zero() - z * z);
  return x * select(less_bits(x, zero()), tail, splat(1.0f) - tail);
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
LEGATO_INLINE Vf gelu_tanh(Vf x) {
  const Vf cube = x * x * x;
  return times_sigmoid(x, splat(1.59576912f) * fma(cube, splat(0.044715f), x));
}

template <Activation A>
LEGATO_INLINE Vf activate(Vf x) {
  if constexpr (A == Activation::silu) return times_sigmoid(x, x);
  if constexpr (A == Activation::gelu) return gelu(x);
  if constexpr (A == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (A == Activation::relu) return max(zero(), x);
  return x;
}
