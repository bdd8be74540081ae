#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/named_tensor.hpp"
#include "engine/parameter_server/batch.hpp"
#include "engine/parameter_server/gradient_check.hpp"
#include "engine/parameter_server/parts.hpp"
#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::engine {

/// The learning rate of an update; the first is 1.
using rate_of_update = std::function<double(std::uint64_t update)>;

/// A shard's parameters with their optimizer: the arithmetic of a parameter server, without actors
/// or threads. Used by one thread, but for `check`, which reads nothing that changes.
///
/// An update writes parameters in place, unless a message or a worker still holds them: then it
/// makes new ones, and what was handed out stays as it was. Where what it makes lies in memory is
/// its caller's choice (a shard's: see actors::lendable_tensors).
class parameter_store {
 public:
  /// `options` are complete (see optimizers::complete); `rate` replaces their "lr", if it is set.
  /// The parameters are copied.
  parameter_store(std::vector<owned_parameter> parameters, optimizers::optimizer optimizer,
                  optimizers::options options, rate_of_update rate = {});

  [[nodiscard]] const std::vector<parameter_entry>& directory() const noexcept {
    return directory_;
  }

  /// See check_gradients.
  [[nodiscard]] result<void> check(const tensor_batch& gradients) const {
    return check_gradients(gradients, directory_);
  }

  /// One update: adds up the pushes in their order, divides by their number, and steps. Parameters
  /// without any gradient stay as they are, with their state; so do rows. The parts have been
  /// checked. Errors: handler_failed when the arithmetic threw; the store is of no use then.
  [[nodiscard]] result<void> update(std::span<const tensor_batch> pushes);

  /// The parameters of these indices (none: all) that have changed since version `newer_than`
  /// (nullopt: whether or not); of a parameter by rows only the rows that have. Nobody writes what
  /// is returned. Errors: bad_data for an unknown index, or more of them than parameters;
  /// handler_failed where there is no memory for the copies.
  [[nodiscard]] result<tensor_batch> read(const std::vector<std::uint32_t>& wanted,
                                          std::optional<param_version> newer_than) const;

  /// What a shard needs beside its parameters to go on to the same bits: the optimizer's state, and
  /// the rows that have one, under the names of optimizers/training/saved_state.hpp for part_name.
  /// The store's own tensors.
  [[nodiscard]] std::vector<named_tensor> state() const;

  /// Goes on from where `state` was read after update `version`, with the parameters as they were
  /// then. Before the first update. Errors: bad_data naming what belongs to no parameter here, or
  /// does not fit it.
  [[nodiscard]] result<void> restore(param_version version, const std::vector<named_tensor>& state);

  /// Updates so far, and those in what it was restored from.
  [[nodiscard]] param_version version() const noexcept { return version_; }

 private:
  struct gradient {
    at::Tensor rows;    // undefined: dense
    at::Tensor values;  // of the parameter's dtype or bf16
  };
  /// Which rows updates have touched, as far back as it is worth to remember.
  struct row_log {
    std::deque<std::pair<param_version, at::Tensor>> touched;  // [r] i64
    std::int64_t rows = 0;                                     // in all of them
    param_version complete_since;  // every update after this one is in `touched`
  };
  struct parameter {
    std::uint32_t group = 0;
    std::uint32_t place = 0;  // in its group
    param_version changed;    // the last update that touched it
    at::Tensor seen;          // [rows] bool, by rows: has a state; else undefined
    row_log log;

    [[nodiscard]] bool by_rows() const { return seen.defined(); }
  };
  /// Neighbours that are stepped together: small ones for the price of one call; few enough bytes
  /// that the means of their gradients are still in the cache. By rows each has its own.
  struct group {
    std::vector<at::Tensor> values;
    optimizers::state state;
    std::uint32_t first = 0;  // its first parameter
  };

  [[nodiscard]] std::vector<std::vector<gradient>> gather(
      std::span<const tensor_batch> pushes) const;
  [[nodiscard]] static gradient mean_of_rows(const std::vector<gradient>& of, std::size_t count,
                                             at::ScalarType type);
  void add_parameter(owned_parameter given);
  [[nodiscard]] std::vector<std::string> names_of(const group& all) const;
  [[nodiscard]] const at::Tensor& values_of(const parameter& owned) const {
    return groups_[owned.group].values[owned.place];
  }
  [[nodiscard]] optimizers::options options_now() const;
  [[nodiscard]] static at::Tensor dense_mean(const std::vector<gradient>& of, std::size_t count,
                                             const at::Tensor& like);
  /// One step of a group with the gradients of each of its parameters, which it lets go of.
  [[nodiscard]] result<void> step(group& all, std::span<std::vector<gradient>> gradients,
                                  std::size_t count, const optimizers::options& options);
  [[nodiscard]] result<void> step_rows(group& all, const gradient& mean,
                                       const optimizers::options& options);
  [[nodiscard]] result<void> step_some_rows(group& all, const gradient& mean, bool first,
                                            const optimizers::options& options);
  void remember(row_log& log, const at::Tensor& rows, std::int64_t all) const;
  [[nodiscard]] static std::optional<at::Tensor> rows_since(const row_log& log, param_version than);

  std::vector<parameter_entry> directory_;
  std::vector<parameter> parameters_;
  std::vector<group> groups_;
  optimizers::optimizer optimizer_;
  optimizers::options options_;
  rate_of_update rate_;
  param_version version_;
};

}  // namespace troupe::engine
