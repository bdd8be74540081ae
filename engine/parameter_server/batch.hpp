#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

/// Gradients or values of some parameters of a shard, as they are pushed and pulled. Parameters are
/// named by their index in their shard's directory.
namespace troupe::engine {

/// Gradients or values of some parameters of one shard. Small ones lie one after another in one
/// tensor, so that a thousand biases are one piece on the wire.
struct tensor_batch {
  struct entry {
    std::uint32_t parameter = 0;
    at::Tensor rows;    // [r] i64: the values are those of these rows; undefined: of all
    at::Tensor values;  // the parameter's shape, or [r, ...]

    static void fields(auto& self, auto& f) { f(self.parameter, self.rows, self.values); }
  };
  /// A run of what is too large for a piece: of a dense parameter's elements, or of the rows given.
  struct run {
    std::uint32_t parameter = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;  // in the whole
    at::Tensor rows;          // [r] i64; undefined: dense
    at::Tensor values;        // [n], or [r, ...]

    static void fields(auto& self, auto& f) {
      f(self.parameter, self.first, self.count, self.rows, self.values);
    }
  };
  std::vector<std::uint32_t> packed;  // parameters whose values lie in `values`, in this order
  at::Tensor values;                  // [sum of their sizes] f32 or bf16; undefined: none
  std::vector<entry> entries;
  std::vector<run> runs = {};  // in pieces alone

  static void fields(auto& self, auto& f) { f(self.packed, self.values, self.entries, self.runs); }
};

/// A parameter of a shard, as workers must know it; or so many rows of one, the others of which are
/// at other shards.
struct parameter_entry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int32_t dtype = 0;  // at::ScalarType
  bool by_rows = false;    // gradients are rows, and each row is updated as a parameter of its own
  std::int64_t first_row = 0;  // where in the whole parameter these rows begin

  static void fields(auto& self, auto& f) {
    f(self.name, self.shape, self.dtype, self.by_rows, self.first_row);
  }
};

/// Values of up to so many elements travel packed.
inline constexpr std::int64_t largest_packed = 16 * 1024;

/// Gathers values for a batch: small dense ones packed, of one dtype.
class batch_builder {
 public:
  /// `dtype` of what is packed.
  explicit batch_builder(at::ScalarType dtype) : dtype_(dtype) {}

  /// Kept by reference until `take`; packed if dense, small and of the dtype.
  void add(std::uint32_t parameter, at::Tensor rows, at::Tensor values);
  [[nodiscard]] tensor_batch take();

 private:
  at::ScalarType dtype_;
  tensor_batch batch_;
  std::vector<at::Tensor> small_;
  std::int64_t elements_ = 0;  // of the small ones
};

/// Errors: bad_data when the packed values are not those of their parameters, as many and in one
/// piece, or for an unknown index.
[[nodiscard]] result<void> check_packed(const tensor_batch& batch,
                                        const std::vector<parameter_entry>& directory);

/// What a batch holds, one entry a parameter: the packed ones as views. Errors: bad_data when the
/// packed values are not as many as their parameters' elements, or for an unknown index.
[[nodiscard]] result<std::vector<tensor_batch::entry>> unpack(
    const tensor_batch& batch, const std::vector<parameter_entry>& directory);

/// bad_data: the index is beyond a shard's `known` parameters.
[[nodiscard]] error no_such_parameter(std::uint32_t index, std::size_t known);

}  // namespace troupe::engine
