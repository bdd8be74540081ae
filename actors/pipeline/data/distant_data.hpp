#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/data.hpp"
#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// A data set that another node has opened. What is read here comes over the link, which is meant
/// for few samples (a profile, a comparison): a run's batches go from `reader` to the stages. Used
/// by threads that may wait. Ends before the actor system.
class distant_data final : public engine::dataset {
 public:
  /// Has a node open the source as the options say. `may_be_lost`: its digest is asked for at once,
  /// for `open_again`. Errors: those of opening it there; peer_lost.
  [[nodiscard]] static result<std::shared_ptr<distant_data>> open(
      caf::actor_system& system, node_names names, const host_actor& host,
      const engine::dataset_options& options, bool may_be_lost);

  /// A batch of a run was read. Another node that opens the data (`open_again`) goes on counting
  /// unreadable samples from there.
  void note_read(const deliver_batch& order, const batch_delivered& as);

  /// Has another node open it, since the one that had is lost, and reads there if the data are the
  /// same. Errors: those of opening it there; bad_data with what is another one; peer_lost. All is
  /// as before then.
  [[nodiscard]] result<void> open_again(const host_actor& host);

  [[nodiscard]] data_actor reader() const;

  [[nodiscard]] std::int64_t size(engine::split part) const override {
    return part == engine::split::test ? what_.test_size : what_.train_size;
  }
  [[nodiscard]] std::int64_t classes() const override { return what_.classes; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override {
    return what_.sample_shape;
  }
  [[nodiscard]] std::int64_t labels_per_sample() const override { return what_.labels_per_sample; }
  [[nodiscard]] result<engine::batch> read(engine::split part,
                                           std::span<const std::int64_t> indices) const override;
  /// Asks the node; where it does not answer any more, what it said last.
  [[nodiscard]] std::uint64_t skipped() const override;
  /// These ask the node too. Errors: peer_lost, timed_out.
  [[nodiscard]] result<engine::left_out_samples> left_out() const override;
  [[nodiscard]] result<std::string> digest() const override;

 private:
  struct opened {
    data_actor reader;
    data_described what;
  };

  distant_data(caf::actor_system& system, node_names names, const engine::dataset_options& options,
               bool may_be_lost)
      : ask_(system, std::move(names)), options_(options), may_be_lost_(may_be_lost) {}
  [[nodiscard]] open_data order_to_open() const;
  [[nodiscard]] result<opened> open_at(const host_actor& host) const;

  mutable requester ask_;
  const engine::dataset_options options_;
  const bool may_be_lost_;
  data_described what_;       // as it was opened first
  mutable std::mutex mutex_;  // guards what follows
  data_actor reader_;
  std::uint64_t skipped_ = 0;                              // as was told last
  std::set<std::int64_t> left_out_train_, left_out_test_;  // of batches
};

/// What is another one of the data, as the end of a sentence; empty: nothing is.
[[nodiscard]] std::string difference_between(const data_described& before,
                                             const data_described& now);

}  // namespace troupe::actors
