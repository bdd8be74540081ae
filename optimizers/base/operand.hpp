#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace troupe::optimizers {

/// What an update's arithmetic has in place of a float where the elements lie on a device: all
/// elements of several tensors at once, or one number for all of them. So the code that updates an
/// element also says which of ATen's operators update tensors, in which order: on the CPU's kernels
/// the same bits. They are its foreach operators where ATen has them, which launch one kernel for
/// many tensors. Results are new tensors. Of two numbers there is no arithmetic: elements have
/// none.
class operand {
 public:
  using list = std::vector<at::Tensor>;

  operand() = default;
  explicit operand(double number) : number_(number) {}
  explicit operand(list all) : all_(std::move(all)) {}

  [[nodiscard]] bool is_number() const { return all_.empty(); }
  [[nodiscard]] double number() const { return number_; }
  /// Empty for a number; else of one type on one device.
  [[nodiscard]] const list& tensors() const { return all_; }

  /// Of numbers.
  friend bool operator==(const operand& a, const operand& b) { return a.number_ == b.number_; }

 private:
  list all_;
  double number_ = 0;
};

/// Of each element.
struct truth {
  operand::list of;     // bool
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
