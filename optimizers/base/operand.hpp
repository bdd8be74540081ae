#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace troupe::optimizers {

/// What an update's arithmetic has in place of a float where the elements lie on a device: all
/// elements at once, or one number for all of them. So the code that updates an element also says
/// which of ATen's operators update a tensor, in which order: on the CPU's kernels the same bits.
/// Results are new tensors. Of two numbers there is no arithmetic: elements have none.
class operand {
 public:
  operand() = default;
  explicit operand(double number) : number_(number) {}
  explicit operand(at::Tensor all) : all_(std::move(all)) {}

  [[nodiscard]] bool is_number() const { return !all_.defined(); }
  [[nodiscard]] double number() const { return number_; }
  /// Undefined for a number.
  [[nodiscard]] const at::Tensor& tensor() const { return all_; }

  /// Of numbers.
  friend bool operator==(const operand& a, const operand& b) { return a.number_ == b.number_; }

 private:
  at::Tensor all_;
  double number_ = 0;
};

/// Of each element.
struct truth {
  at::Tensor of;        // bool
  at::ScalarType type;  // that what is chosen by it has
};

[[nodiscard]] operand operator+(const operand& a, const operand& b);
[[nodiscard]] operand operator*(const operand& a, const operand& b);
[[nodiscard]] operand operator/(const operand& a, const operand& b);
[[nodiscard]] operand operator-(const operand& a);
[[nodiscard]] truth operator<(const operand& a, const operand& b);
[[nodiscard]] truth operator>(const operand& a, const operand& b);
[[nodiscard]] operand sqrt(const operand& a);
[[nodiscard]] operand abs(const operand& a);
/// a * b + c, rounded once where ATen's operator does so.
[[nodiscard]] operand fused(const operand& a, const operand& b, const operand& c);
[[nodiscard]] operand larger(const operand& a, const operand& b);
[[nodiscard]] operand sign_of(const operand& a);
/// `a` where it is true, else `b`.
[[nodiscard]] operand choose(const truth& which, const operand& a, const operand& b);

}  // namespace troupe::optimizers
