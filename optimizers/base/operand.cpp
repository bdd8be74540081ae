#include "optimizers/base/operand.hpp"

#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_reciprocal.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace troupe::optimizers {
namespace {

using list = operand::list;

/// One of two, at least, is a list.
void expect_tensor(const operand& a, const operand& b) {
  if (a.is_number() && b.is_number())
    throw std::logic_error("an update computes with numbers only, which an element need not");
}

/// For operators that ATen has for single tensors only.
template <class Make>
list each_of(std::size_t count, const Make& make) {
  list made;
  made.reserve(count);
  for (std::size_t i = 0; i < count; ++i) made.push_back(make(i));
  return made;
}

/// Tensors of these forms, all elements of which are the number: one is filled, and all others
/// share its memory.
list filled(const list& forms, double number) {
  std::int64_t most = 0;
  for (const auto& each : forms) most = std::max(most, each.numel());
  const auto all = at::full({most}, number, forms.front().options().requires_grad(false));
  return each_of(forms.size(), [&](std::size_t i) {
    const auto& form = forms[i];
    return form.is_non_overlapping_and_dense() ? all.as_strided(form.sizes(), form.strides(), 0)
                                               : at::full_like(form, number);
  });
}

template <class Compare>
truth compared(const operand& a, const operand& b, const Compare& compare) {
  const auto& left = a.tensors();
  return {each_of(left.size(),
                  [&](std::size_t i) {
                    return b.is_number() ? compare(left[i], b.number())
                                         : compare(left[i], b.tensors()[i]);
                  }),
          left.front().scalar_type()};
}

}  // namespace

operand operator+(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b + a;
  return operand(b.is_number() ? at::_foreach_add(a.tensors(), b.number())
                               : at::_foreach_add(a.tensors(), b.tensors()));
}

operand operator*(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b * a;
  return operand(b.is_number() ? at::_foreach_mul(a.tensors(), b.number())
                               : at::_foreach_mul(a.tensors(), b.tensors()));
}

operand operator/(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return operand(at::_foreach_reciprocal(b.tensors())) * a;
  return operand(b.is_number() ? at::_foreach_div(a.tensors(), b.number())
                               : at::_foreach_div(a.tensors(), b.tensors()));
}

operand operator-(const operand& a) {
  return a.is_number() ? operand(-a.number()) : operand(at::_foreach_neg(a.tensors()));
}

truth operator<(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b > a;
  return compared(a, b, [](const auto& x, const auto& y) { return at::lt(x, y); });
}

truth operator>(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b < a;
  return compared(a, b, [](const auto& x, const auto& y) { return at::gt(x, y); });
}

operand sqrt(const operand& a) {
  return operand(at::_foreach_sqrt(a.tensors()));
}

operand abs(const operand& a) {
  return operand(at::_foreach_abs(a.tensors()));
}

operand fused(const operand& a, const operand& b, const operand& c) {
  expect_tensor(a, b);
  if (a.is_number()) return fused(b, a, c);
  const auto added = c.is_number() ? filled(a.tensors(), c.number()) : c.tensors();
  return operand(b.is_number() ? at::_foreach_add(added, a.tensors(), b.number())
                               : at::_foreach_addcmul(added, a.tensors(), b.tensors()));
}

operand larger(const operand& a, const operand& b) {
  return operand(at::_foreach_maximum(a.tensors(), b.tensors()));
}

operand sign_of(const operand& a) {
  return operand(at::_foreach_sign(a.tensors()));
}

operand choose(const truth& which, const operand& a, const operand& b) {
  const auto one_of = [&](const operand& from, std::size_t i) {
    return from.is_number()
               ? at::scalar_tensor(from.number(), which.of[i].options().dtype(which.type))
               : from.tensors()[i];
  };
  return operand(each_of(which.of.size(), [&](std::size_t i) {
    return at::where(which.of[i], one_of(a, i), one_of(b, i));
  }));
}

}  // namespace troupe::optimizers
