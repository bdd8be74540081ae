#include "actors/pipeline/data/distant_data.hpp"

#include <utility>

#include "actors/base/deadlines.hpp"

namespace troupe::actors {
namespace {

std::string counts_of(const data_described& data) {
  return std::to_string(data.train_size) + " training and " + std::to_string(data.test_size) +
         " test samples";
}

result<data_described> describe_there(requester& ask, const data_actor& reader, bool digested,
                                      std::chrono::nanoseconds deadline) {
  return ask.request<data_described>(reader, describe_data{.digested = digested}, deadline).get();
}

}  // namespace

std::string difference_between(const data_described& before, const data_described& now) {
  if (before.train_size != now.train_size || before.test_size != now.test_size)
    return "they had " + counts_of(before) + ", and have " + counts_of(now);
  const bool is_same = before.classes == now.classes && before.sample_shape == now.sample_shape &&
                       before.labels_per_sample == now.labels_per_sample &&
                       before.digest == now.digest;
  return is_same ? "" : "they have as many samples, but not the same";
}

result<std::shared_ptr<distant_data>> distant_data::open(caf::actor_system& system,
                                                         node_names names, const host_actor& host,
                                                         const engine::dataset_options& options,
                                                         bool may_be_lost) {
  std::shared_ptr<distant_data> made(
      new distant_data(system, std::move(names), options, may_be_lost));
  auto there = made->open_at(host);
  if (!there) return tl::unexpected(there.error());
  made->reader_ = std::move(there->reader);
  made->what_ = std::move(there->what);
  return made;
}

open_data distant_data::order_to_open() const {
  const std::scoped_lock lock(mutex_);
  return {.source = options_.source,
          .context = options_.context,
          .image_size = options_.image_size,
          .seed = options_.seed,
          .threads = options_.threads,
          .strict = options_.strict,
          .skipped = skipped_,
          .left_out_train = engine::told_of(left_out_train_),
          .left_out_test = engine::told_of(left_out_test_)};
}

result<distant_data::opened> distant_data::open_at(const host_actor& host) const {
  const auto there = ask_.request<data_opened>(host, order_to_open(), usual_deadlines.build).get();
  if (!there) return tl::unexpected(there.error());
  opened made{.reader = caf::actor_cast<data_actor>(there->data), .what = {}};
  auto what = describe_there(ask_, made.reader, may_be_lost_, usual_deadlines.build);
  if (!what) return tl::unexpected(what.error());
  made.what = std::move(*what);
  return made;
}

void distant_data::note_read(const deliver_batch& order, const batch_delivered& as) {
  const auto left_out = to_list(as.left_out);
  const std::scoped_lock lock(mutex_);
  skipped_ = as.skipped;
  (order.test ? left_out_test_ : left_out_train_).insert(left_out.begin(), left_out.end());
}

result<void> distant_data::open_again(const host_actor& host) {
  auto there = open_at(host);
  if (!there) return tl::unexpected(there.error());
  if (const auto other = difference_between(what_, there->what); !other.empty())
    return fail(errc::bad_data, options_.source + " has changed since the run began: " + other);
  const std::scoped_lock lock(mutex_);
  reader_ = std::move(there->reader);
  return {};
}

data_actor distant_data::reader() const {
  const std::scoped_lock lock(mutex_);
  return reader_;
}

result<engine::batch> distant_data::read(engine::split part,
                                         std::span<const std::int64_t> indices) const {
  const auto samples =
      ask_.request<samples_read>(reader(),
                                 read_samples{part == engine::split::test, to_tensor(indices)},
                                 usual_deadlines.read)
          .get();
  if (!samples) return tl::unexpected(samples.error());
  return engine::batch{samples->inputs, samples->labels};
}

std::uint64_t distant_data::skipped() const {
  const auto what = describe_there(ask_, reader(), false, usual_deadlines.last_word);
  if (what) return what->skipped;
  const std::scoped_lock lock(mutex_);
  return skipped_;
}

result<engine::left_out_samples> distant_data::left_out() const {
  return describe_there(ask_, reader(), false, usual_deadlines.transfer)
      .map([](const data_described& what) {
        return engine::left_out_samples{what.left_out_train, what.left_out_test};
      });
}

result<std::string> distant_data::digest() const {
  if (may_be_lost_) return what_.digest;
  return describe_there(ask_, reader(), true, usual_deadlines.build)
      .map([](const data_described& what) { return what.digest; });
}

}  // namespace troupe::actors
