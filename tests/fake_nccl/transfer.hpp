#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/fake_nccl/world.hpp"

namespace troupe::tests::fake_nccl {

/// One operation under way. `step` moves what can be moved now.
class transfer {
 public:
  virtual ~transfer() = default;
  /// Throws std::runtime_error where ranks do not call the same.
  virtual void step() = 0;
  [[nodiscard]] virtual bool over() const = 0;
  [[nodiscard]] virtual bool begun() const = 0;
  /// Transfers of one group with the same lane go one after the other.
  std::string lane;
};

/// The arguments of an operation, as NCCL's function got them.
struct arguments {
  enum class function : std::uint8_t {
    send,
    receive,
    all_reduce,
    reduce_scatter,
    all_gather,
    broadcast
  } what;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  engine::nccl::data_type type = engine::nccl::data_type::float32;
  engine::nccl::reduction by = engine::nccl::reduction::sum;
  int peer = 0;
};

/// Null where this NCCL cannot: a reduction of float16.
std::unique_ptr<transfer> make_transfer(world& in, const arguments& of);

}  // namespace troupe::tests::fake_nccl
