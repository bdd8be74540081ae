#include "optimizers/base/operand.hpp"

#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

#include <stdexcept>

namespace troupe::optimizers {
namespace {

/// One of two, at least, is a tensor.
void expect_tensor(const operand& a, const operand& b) {
  if (a.is_number() && b.is_number())
    throw std::logic_error("an update computes with numbers only, which an element need not");
}

at::Tensor one_of(const truth& which, const operand& a) {
  return a.is_number() ? at::scalar_tensor(a.number(), which.of.options().dtype(which.type))
                       : a.tensor();
}

}  // namespace

operand operator+(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b + a;
  return operand(b.is_number() ? at::add(a.tensor(), b.number()) : at::add(a.tensor(), b.tensor()));
}

operand operator*(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b * a;
  return operand(b.is_number() ? at::mul(a.tensor(), b.number()) : at::mul(a.tensor(), b.tensor()));
}

operand operator/(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return operand(at::reciprocal(b.tensor())) * a;
  return operand(b.is_number() ? at::div(a.tensor(), b.number()) : at::div(a.tensor(), b.tensor()));
}

operand operator-(const operand& a) {
  return a.is_number() ? operand(-a.number()) : operand(at::neg(a.tensor()));
}

truth operator<(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b > a;
  return {b.is_number() ? at::lt(a.tensor(), b.number()) : at::lt(a.tensor(), b.tensor()),
          a.tensor().scalar_type()};
}

truth operator>(const operand& a, const operand& b) {
  expect_tensor(a, b);
  if (a.is_number()) return b < a;
  return {b.is_number() ? at::gt(a.tensor(), b.number()) : at::gt(a.tensor(), b.tensor()),
          a.tensor().scalar_type()};
}

operand sqrt(const operand& a) {
  return operand(at::sqrt(a.tensor()));
}

operand abs(const operand& a) {
  return operand(at::abs(a.tensor()));
}

operand fused(const operand& a, const operand& b, const operand& c) {
  expect_tensor(a, b);
  if (a.is_number()) return fused(b, a, c);
  const auto added = c.is_number() ? at::full_like(a.tensor(), c.number()) : c.tensor();
  return operand(b.is_number() ? at::add(added, a.tensor(), b.number())
                               : at::addcmul(added, a.tensor(), b.tensor()));
}

operand larger(const operand& a, const operand& b) {
  return operand(at::maximum(a.tensor(), b.tensor()));
}

operand sign_of(const operand& a) {
  return operand(at::sign(a.tensor()));
}

operand choose(const truth& which, const operand& a, const operand& b) {
  return operand(at::where(which.of, one_of(which, a), one_of(which, b)));
}

}  // namespace troupe::optimizers
