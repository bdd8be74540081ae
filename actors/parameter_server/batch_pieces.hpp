#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "actors/messages/parameter_server/worker.hpp"
#include "messages/base/error.hpp"

/// Batches of gradients or values that are too large for one message: cut by whoever sends, put
/// together by whoever gets them, kept by a shard meanwhile. No actors, threads or clocks.
namespace troupe::actors {

/// Whether a batch is within the limits, so that it need not be cut.
[[nodiscard]] bool fits(const engine::tensor_batch& batch, const piece_limits& most);

/// Cuts a batch into pieces, which share its tensors: at least one packed parameter, element or row
/// each, and no more than the limits otherwise. A batch of nothing is one piece.
class batch_cutter {
 public:
  /// `directory`: of the shard that the batch is for or of.
  batch_cutter(engine::tensor_batch whole, const std::vector<engine::parameter_entry>& directory,
               const piece_limits& most);

  [[nodiscard]] bool done() const;
  [[nodiscard]] engine::tensor_batch next();

 private:
  struct room {
    std::uint64_t bytes;
    std::uint64_t tensors;
  };

  void take_packed(engine::tensor_batch& piece, room& left);
  [[nodiscard]] bool take_entry(engine::tensor_batch& piece, room& left);
  [[nodiscard]] bool take_run(const engine::tensor_batch::entry& from, engine::tensor_batch& piece,
                              room& left);

  engine::tensor_batch whole_;
  std::vector<std::int64_t> packed_sizes_;  // elements of each packed parameter
  piece_limits most_;
  std::size_t packed_ = 0;    // packed parameters taken
  std::int64_t element_ = 0;  // of the packed values
  std::size_t entry_ = 0;     // the next to take
  std::uint64_t first_ = 0;   // of it, elements or rows taken
};

/// Puts a batch together from its pieces. What was cut gets its storage at the first run, and no
/// more than its parameter has; nothing else is copied. The outcome has neither packed values nor
/// runs, and is still to be checked as any batch.
class batch_assembly {
 public:
  explicit batch_assembly(std::vector<engine::parameter_entry> directory);

  /// Errors: bad_data naming a parameter that comes twice or whose runs do not fit; bad_frame for a
  /// run that is missing, repeated or out of order.
  [[nodiscard]] result<void> add(const engine::tensor_batch& piece);
  /// Errors: bad_frame for a parameter that is incomplete.
  [[nodiscard]] result<engine::tensor_batch> take();

 private:
  [[nodiscard]] result<void> add_run(const engine::tensor_batch::run& run);
  [[nodiscard]] result<void> open(const engine::tensor_batch::run& run);
  [[nodiscard]] result<void> once(std::uint32_t parameter);

  std::vector<engine::parameter_entry> directory_;
  std::vector<bool> given_;  // by parameter
  engine::tensor_batch whole_;
  /// Its tensors are the whole's; `first`: filled so far.
  std::optional<engine::tensor_batch::run> open_;
};

/// A shard's part of a push, whole or refused.
using whole_part = result<engine::tensor_batch>;

/// Parts that come in pieces: one under way for each worker.
class incoming_parts {
 public:
  /// Nothing before the last piece. An error in a piece is returned at the last one, so that every
  /// shard learns of the push. Errors: those of batch_assembly; bad_frame for a piece that is
  /// missing, repeated or out of order.
  [[nodiscard]] std::optional<whole_part> add(
      const push_gradients& piece, const std::vector<engine::parameter_entry>& directory);
  void forget(engine::worker_id worker) { open_.erase(worker); }

 private:
  struct open_part {
    std::uint64_t sequence = 0;
    std::uint32_t next = 0;
    result<batch_assembly> pieces;
  };
  std::map<engine::worker_id, open_part> open_;
};

/// Values that did not fit into an answer: for each worker those of its last.
class unfetched_values {
 public:
  /// The first piece of what a worker asked for, and what it will ask for next.
  [[nodiscard]] parameters_pulled begin(engine::worker_id worker, param_version version,
                                        const engine::tensor_batch& values,
                                        const batch_limits& most,
                                        const std::vector<engine::parameter_entry>& directory);
  /// Errors: bad_frame for a piece that is not due.
  [[nodiscard]] result<parameters_pulled> next(engine::worker_id worker, std::uint32_t piece);
  void forget(engine::worker_id worker) { kept_.erase(worker); }

 private:
  struct rest {
    param_version version;
    std::uint32_t next = 1;
    batch_cutter pieces;
  };
  std::map<engine::worker_id, rest> kept_;
};

}  // namespace troupe::actors
