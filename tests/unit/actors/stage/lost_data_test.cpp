// What a pipeline does when the reader of its batches is lost with a stage.

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/flow.hpp"
#include "actors/pipeline/data/distant_data.hpp"
#include "engine/data/dataset.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/actors/stage/idle_company.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using engine::step_kind;

constexpr auto in_time = 10s;

/// Samples that are their own numbers; the first `unreadable` ones are left out.
class numbered_samples final : public engine::dataset {
 public:
  explicit numbered_samples(std::int64_t unreadable = 0) : unreadable_(unreadable) {}

  [[nodiscard]] std::int64_t size(engine::split) const override { return 8; }
  [[nodiscard]] std::int64_t classes() const override { return 2; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return {1}; }
  [[nodiscard]] result<engine::batch> read(engine::split part,
                                           std::span<const std::int64_t> indices) const override {
    return read_partly(part, indices).map([](engine::partial_batch all) { return all.readable; });
  }
  [[nodiscard]] result<engine::partial_batch> read_partly(
      engine::split, std::span<const std::int64_t> indices) const override {
    std::vector<std::int64_t> readable, left_out;
    for (const auto each : indices) (each >= unreadable_ ? readable : left_out).push_back(each);
    left_out_.insert(left_out.begin(), left_out.end());
    skipped_ += left_out.size();
    const auto count = static_cast<std::int64_t>(readable.size());
    const auto first = readable.empty() ? 0.0 : static_cast<double>(readable.front());
    return engine::partial_batch{{at::full({count, 1}, first), at::zeros({count}, at::kLong)},
                                 left_out};
  }
  [[nodiscard]] std::uint64_t skipped() const override { return skipped_; }
  [[nodiscard]] result<engine::left_out_samples> left_out() const override {
    return engine::left_out_samples{{left_out_.begin(), left_out_.end()}, {}};
  }

 private:
  std::int64_t unreadable_;
  // Of its reader's thread.
  mutable std::uint64_t skipped_ = 0;
  mutable std::set<std::int64_t> left_out_;
};

/// Samples for which the process lacks descriptors, and memory to make the digest.
class starved_samples final : public engine::dataset {
 public:
  [[nodiscard]] std::int64_t size(engine::split) const override { return 8; }
  [[nodiscard]] std::int64_t classes() const override { return 2; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return {1}; }
  [[nodiscard]] result<engine::batch> read(engine::split,
                                           std::span<const std::int64_t>) const override {
    return fail(errc::io_failed, "0.jpg cannot be used: Too many open files");
  }
  [[nodiscard]] result<std::string> digest() const override { throw std::bad_alloc(); }
};

/// Idle stages that a reader of its own feeds.
struct fed_company {
  explicit fed_company(std::size_t count, std::uint32_t replicas = 1, std::int64_t unreadable = 0)
      : run(count, {.credits = 4, .replicas = replicas},
            std::make_shared<numbered_samples>(unreadable)) {}

  /// Has the batch of one step read, of two samples from that one on.
  engine::step_key deliver(std::int64_t sample) {
    const auto key = run.pipeline->next_step();
    const std::vector<std::int64_t> indices{sample, sample + 1};
    const actors::deliver_batch order{key, false, actors::to_tensor(indices), 2};
    actors::requester ask(run.system);
    const auto read =
        ask.request<actors::batch_delivered>(run.pipeline->reader(), order, in_time).get(in_time);
    REQUIRE(read);
    run.pipeline->note_fed(order, *read);
    return key;
  }
  void begin(const engine::step_key& key, std::uint32_t samples = 2) {
    REQUIRE(run.pipeline->begin(key, {step_kind::training, samples, samples, 0.1}));
  }
  /// Another stage takes that place, and another reader that of the one there is.
  result<std::uint64_t> replace(std::size_t stage, std::int64_t unreadable = 0) {
    return run.replace(stage, 0, run.add_reader(std::make_shared<numbered_samples>(unreadable)));
  }

  tests::idle_company run;
};

float value_of(const actors::activation& in) {
  return in.tensor.item<float>();
}

}  // namespace

TEST_CASE("A new reader feeds the steps that are done again, and one that has not begun") {
  fed_company all(2);
  auto& run = all.run;
  const auto begun = all.deliver(4);
  all.begin(begun);
  const auto next = all.deliver(6);
  for (int i = 0; i < 4; ++i) static_cast<void>(run.got[1]->targets.next());
  run.lose(0);
  REQUIRE(run.pipeline->wait(in_time));
  REQUIRE_FALSE(run.pipeline->finish());
  REQUIRE(run.pipeline->can_replay());
  CHECK(all.replace(0).value() == 1);
  // The stage that is left is told first, and gets all labels once more.
  const auto told = run.got[1]->feeders.next();
  CHECK(told.from == begun);
  CHECK(told.by == caf::actor_cast<caf::strong_actor_ptr>(run.pipeline->feeders().front()));
  auto& fresh = *run.got.back();
  CHECK(fresh.connections.next().feeder == told.by);
  CHECK(fresh.feeders.empty());
  for (const auto& [key, sample] : {std::pair(begun, 4.F), std::pair(next, 6.F)})
    for (std::uint32_t i = 0; i < 2; ++i) {
      const auto input = fresh.activations.next();
      CHECK(input.key.step == key);
      CHECK(input.key.microbatch.value == i);
      CHECK(value_of(input) == sample);
      CHECK(run.got[1]->targets.next().key.step == key);
    }
  CHECK(fresh.activations.empty());
}

TEST_CASE("Stages at both ends are fed again when one between them is lost with the reader") {
  fed_company all(3);
  auto& run = all.run;
  all.begin(all.deliver(0));
  static_cast<void>(run.got[0]->activations.next());
  run.lose(1);
  CHECK(all.replace(1).value() == 1);
  CHECK(run.got[0]->feeders.next().by == run.got[2]->feeders.next().by);
  // The second half of the first time, and all once more.
  for (int i = 0; i < 3; ++i) static_cast<void>(run.got[0]->activations.next());
  for (int i = 0; i < 4; ++i) static_cast<void>(run.got[2]->targets.next());
}

TEST_CASE("The reader of all replicas is replaced for all of them") {
  fed_company all(4, 2);
  auto& run = all.run;
  all.begin(all.deliver(0));
  run.lose(0);
  CHECK(all.replace(0).value() == 1);
  const auto& feeders = run.pipeline->feeders();
  REQUIRE(feeders.size() == 2);
  const auto of = [&](std::size_t replica) {
    return caf::actor_cast<caf::strong_actor_ptr>(feeders[replica]);
  };
  CHECK(run.got[1]->feeders.next().by == of(0));
  CHECK(run.got[2]->feeders.next().by == of(1));
  CHECK(run.got[3]->feeders.next().by == of(1));
}

TEST_CASE("A reader that is lost once more after it has fed again is replaced by a third one") {
  fed_company all(2);
  auto& run = all.run;
  const auto begun = all.deliver(4);
  all.begin(begun);
  run.lose(0);
  CHECK(all.replace(0).value() == 1);
  run.lose(2);
  CHECK(all.replace(0).value() == 1);
  auto& fresh = *run.got.back();
  CHECK(value_of(fresh.activations.next()) == 4.F);
  CHECK(value_of(fresh.activations.next()) == 4.F);
  CHECK(fresh.activations.empty());
  CHECK(run.got[1]->feeders.next().by != run.got[1]->feeders.next().by);
}

TEST_CASE("A batch that has other samples than before ends a replay, which says so") {
  fed_company all(2);
  auto& run = all.run;
  all.begin(all.deliver(0));
  run.lose(0);
  const auto replayed = error_of(all.replace(0, 1));
  CHECK(replayed.code == errc::bad_data);
  CHECK_THAT(replayed.text,
             ContainsSubstring("a batch had 2 samples that could be read, and has 1"));
}

TEST_CASE("A sample that was left out of a batch is left out again, though it can be read now") {
  fed_company all(2, 1, 1);
  auto& run = all.run;
  all.begin(all.deliver(0), 1);
  run.lose(0);
  CHECK(all.replace(0).value() == 1);
  auto& fresh = *run.got.back();
  CHECK(value_of(fresh.activations.next()) == 1.F);
  CHECK(fresh.activations.empty());
}

TEST_CASE("A reader goes on with the count and the list of those before it") {
  fed_company all(2);
  auto& run = all.run;
  run.readers.push_back(actors::spawn_data(run.system, std::make_shared<numbered_samples>(2), {}, 0,
                                           {.times = 3, .which = {{1, 5}, {4}}}));
  actors::requester ask(run.system);
  const auto described = [&] {
    const auto what =
        ask.request<actors::data_described>(run.readers.back(), actors::describe_data{}, in_time)
            .get(in_time);
    REQUIRE(what);
    return *what;
  };
  CHECK(described().skipped == 3);
  const std::vector<std::int64_t> indices{0, 1, 2};
  REQUIRE(ask.request<actors::samples_read>(run.readers.back(),
                                            actors::read_samples{false, actors::to_tensor(indices)},
                                            in_time)
              .get(in_time));
  const auto now = described();
  CHECK(now.skipped == 5);
  CHECK(now.left_out_train == std::vector<std::int64_t>{0, 1, 5});
  CHECK(now.left_out_test == std::vector<std::int64_t>{4});
}

namespace {

/// Who reads starved_samples, and who asks.
struct starved_reader {
  ~starved_reader() { caf::anon_send_exit(reader, caf::exit_reason::user_shutdown); }

  template <class Answer, class Request>
  result<Answer> ask(Request what) {
    return asks.request<Answer>(reader, std::move(what), in_time).get(in_time);
  }

  actors::system_config config;
  caf::actor_system system{config};
  actors::data_actor reader = actors::spawn_data(system, std::make_shared<starved_samples>());
  actors::requester asks{system};
};

}  // namespace

TEST_CASE("A reader that has no memory for an answer says so, and answers what comes after") {
  starved_reader at;
  const auto refused =
      error_of(at.ask<actors::data_described>(actors::describe_data{.digested = true}));
  CHECK(refused.code == errc::handler_failed);
  CHECK(refused.text == "the reading of data: there is no memory left");
  const auto told = at.ask<actors::data_described>(actors::describe_data{.digested = false});
  CHECK(told.value().train_size == 8);
}

TEST_CASE("What a reader lacks to read a sample is a failure of the run, and not of its settings") {
  const auto refused = error_of(starved_reader().ask<actors::samples_read>(
      actors::read_samples{false, at::zeros({1}, at::kLong)}));
  CHECK(refused.code == errc::handler_failed);
  CHECK(refused.text == "0.jpg cannot be used: Too many open files");
}

TEST_CASE("What is another one of data that were opened again is said") {
  const actors::data_described before{.train_size = 8,
                                      .test_size = 2,
                                      .classes = 10,
                                      .sample_shape = {3},
                                      .left_out_train = {},
                                      .left_out_test = {},
                                      .digest = "abc"};
  CHECK(actors::difference_between(before, before).empty());
  auto grown = before;
  grown.train_size = 9;
  CHECK(actors::difference_between(before, grown) ==
        "they had 8 training and 2 test samples, and have 9 training and 2 test samples");
  auto other = before;
  other.digest = "abd";
  CHECK(actors::difference_between(before, other) == "they have as many samples, but not the same");
}
