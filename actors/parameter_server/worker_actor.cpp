#include "actors/parameter_server/worker_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <chrono>
#include <exception>
#include <map>
#include <span>
#include <utility>
#include <variant>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/base/process_identity.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/share.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/remote/progress_board.hpp"
#include "actors/transfer/pieces.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/model/activity.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/stage_module.hpp"
#include "engine/stage/work_thread.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::actors {
namespace {

using clock = std::chrono::steady_clock;
using engine::work_kind;

/// Shares and reads that a worker keeps until their turn.
constexpr std::size_t max_waiting = 64;

/// What a worker's thread works with: the whole model as one stage, and a place at the server.
class apprentice {
 public:
  static result<std::unique_ptr<apprentice>> make(
      caf::actor_system& system, std::shared_ptr<requester> ask, const learner_factory& make,
      const build_worker& order, std::shared_ptr<messages::shared_memory> memory,
      const std::shared_ptr<progress_board>& progress, const engine::stage_options& how) {
    auto what = make(order);
    if (!what) return tl::unexpected(what.error());
    auto server = parameter_client::join(
        system, *ask, caf::actor_cast<coordinator_actor>(order.coordinator),
        {.rank = order.rank, .bf16_gradients = order.bf16_gradients, .memory = memory});
    if (!server) return tl::unexpected(server.error());
    std::unique_ptr<apprentice> made(new apprentice(std::move(ask), std::move(*what), how,
                                                    std::move(*server), std::move(memory)));
    if (auto fresh = made->refresh(); !fresh) return tl::unexpected(fresh.error());
    if (progress) progress->watch("arithmetic", made->doing_);
    return made;
  }

  result<share_done> run(const run_share& order) {
    share_done report{.step = order.step, .code = {}, .failure = {}};
    const std::span samples(order.samples.const_data_ptr<std::int64_t>(),
                            static_cast<std::size_t>(order.samples.numel()));
    const auto part = order.evaluate ? engine::split::test : engine::split::train;
    const auto batch = [&] {
      const engine::activity_scope scope(*doing_, {.kind = work_kind::read, .step = order.step});
      return data_->read(part, samples);
    }();
    if (!batch) return tl::unexpected(batch.error());
    report.samples = batch->labels.numel();
    auto done = order.evaluate ? evaluate(*batch, report) : train(*batch, report);
    if (!done) return tl::unexpected(done.error());
    report.peak_memory_bytes = peak_memory_bytes();
    return report;
  }

  /// A piece of them: the newest at the first, and of the same version from then on.
  result<tensor_piece> weights(const read_weights& what) {
    if (what.from == list_place{}) {
      if (auto fresh = refresh(); !fresh) return tl::unexpected(fresh.error());
    }
    return cut_piece(engine::collect_weights(module_.layers()), what.from, what.most,
                     piece_tensors::copied);
  }

  [[nodiscard]] result<tensor_piece> buffers(const read_buffers& what) const {
    return cut_piece(engine::buffers(module_.layers()), what.from, what.most,
                     piece_tensors::copied);
  }

  /// Takes over buffers, a piece at a time.
  result<void> load(const load_weights& what) {
    if (!loader_ || what.piece.begin == list_place{})
      loader_ = std::make_unique<weight_loader>(engine::buffers(module_.layers()), /*partly=*/true);
    return loader_->add(what.piece);
  }

 private:
  apprentice(std::shared_ptr<requester> ask, learner what, const engine::stage_options& how,
             std::unique_ptr<parameter_client> server,
             std::shared_ptr<messages::shared_memory> memory)
      : ask_(std::move(ask)),
        data_(std::move(what.data)),
        module_(std::move(what.layers), how),
        server_(std::move(server)),
        memory_(std::move(memory)) {}

  static engine::work_item forward_of(const engine::batch& batch, const share_done& report,
                                      bool evaluation) {
    return {.kind = work_kind::forward,
            .evaluation = evaluation,
            .step = report.step,
            .size = static_cast<std::uint64_t>(batch.inputs.numel())};
  }

  result<void> take(const result<fresh_values>& fresh) {
    if (!fresh) return tl::unexpected(fresh.error());
    return take_values(module_.parameters(), server_->parameters(), *fresh);
  }
  result<void> refresh() { return take(server_->refresh().get()); }

  result<void> evaluate(const engine::batch& batch, share_done& report) {
    if (auto fresh = refresh(); !fresh) return fresh;
    if (report.samples == 0) return {};
    const auto begin = clock::now();
    const engine::activity_scope scope(*doing_, forward_of(batch, report, true));
    auto outcome = module_.forward({{}, {report.step}}, engine::step_kind::evaluation, {},
                                   batch.inputs, batch.labels, report.samples);
    report.loss = outcome.loss;
    report.metrics = std::move(outcome.metrics);
    report.busy_s += std::chrono::duration<double>(clock::now() - begin).count();
    return {};
  }

  /// Until a push is applied: one that was too stale is computed again.
  result<void> train(const engine::batch& batch, share_done& report) {
    for (;;) {
      const auto gradients = compute(batch, report);
      const auto fresh = take(server_->push_pull(gradients).get());
      if (fresh || fresh.error().code != errc::stale) return fresh;
      ++report.stale;
      if (auto again = refresh(); !again) return again;
    }
  }

  std::vector<engine::named_tensor> compute(const engine::batch& batch, share_done& report) {
    std::vector<engine::named_tensor> gradients;
    if (report.samples == 0) return gradients;
    const auto begin = clock::now();
    const engine::step_key key{{}, {report.step}};
    {
      const engine::activity_scope scope(*doing_, forward_of(batch, report, false));
      report.loss = module_
                        .forward(key, engine::step_kind::training, {}, batch.inputs, batch.labels,
                                 report.samples)
                        .loss;
    }
    const engine::activity_scope scope(*doing_, {.kind = work_kind::backward, .step = report.step});
    module_.backward_input(key, {}, {});
    {
      const lendable_tensors lendable(memory_);
      module_.backward_weights(key, {});
    }
    auto sums = module_.take_gradients();
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (sums[i]) gradients.push_back({module_.parameters()[i].name, std::move(*sums[i])});
    report.busy_s += std::chrono::duration<double>(clock::now() - begin).count();
    return gradients;
  }

  const std::shared_ptr<requester> ask_;  // the client's
  const std::shared_ptr<const engine::dataset> data_;
  engine::stage_module module_;
  const std::unique_ptr<parameter_client> server_;
  const std::shared_ptr<messages::shared_memory> memory_;
  std::unique_ptr<weight_loader> loader_;  // of the buffers that come
  const std::shared_ptr<engine::activity> doing_ =
      std::make_shared<engine::activity>(std::vector<const engine::model*>{&module_.layers()});
};

using answer = std::variant<caf::typed_response_promise<share_done>,
                            caf::typed_response_promise<weights_piece>,
                            caf::typed_response_promise<acknowledged>>;

struct worker_state {
  std::string name;
  std::shared_ptr<result<std::unique_ptr<apprentice>>> apprentice_;  // the work thread's
  std::map<std::uint64_t, answer> waiting;                           // by ticket
  std::uint64_t last_ticket = 0;
  std::unique_ptr<engine::work_thread> work;  // last
};

using worker_pointer = worker_actor::stateful_pointer<worker_state>;

/// Calls on the work thread, which makes a report of whatever comes of it. The answer follows.
template <class Answer, class Work>
caf::result<Answer> post(worker_pointer self, Work work) {
  auto& state = self->state;
  if (state.waiting.size() >= max_waiting)
    return to_caf({errc::bad_frame, state.name + ": too many requests wait for it"});
  auto promise = self->make_response_promise<Answer>();
  const auto ticket = ++state.last_ticket;
  state.waiting.emplace(ticket, promise);
  state.work->post([here = state.apprentice_, ticket, work = std::move(work),
                    self_handle = caf::actor_cast<worker_actor>(self)] {
    share_outcome outcome{.ticket = ticket, .report = {}, .weights = {}};
    const auto failed = [&](const error& why) {
      outcome.report.code = why.code;
      outcome.report.failure = why.text;
    };
    try {
      if (!*here)
        failed(here->error());
      else if (const auto done = work(***here, outcome); !done)
        failed(done.error());
    } catch (const std::exception& problem) {
      failed({errc::handler_failed, engine::reason_of(problem)});
    }
    caf::anon_send(self_handle, std::move(outcome));
  });
  return promise;
}

caf::result<share_done> on_share(worker_pointer self, const run_share& order) {
  if (!order.samples.defined() || order.samples.dim() != 1 ||
      order.samples.scalar_type() != at::kLong || !order.samples.is_contiguous())
    return to_caf(
        {errc::bad_frame, self->state.name + ": a share's samples are no list of numbers"});
  return post<share_done>(self, [order](apprentice& who, share_outcome& outcome) {
    return who.run(order).map([&](share_done report) { outcome.report = std::move(report); });
  });
}

/// A piece that the work thread cuts: `cut(apprentice)` gives it.
template <class Cut>
caf::result<weights_piece> on_read(worker_pointer self, Cut cut) {
  return post<weights_piece>(self, [cut](apprentice& who, share_outcome& outcome) {
    return cut(who).map([&](tensor_piece piece) { outcome.weights = std::move(piece); });
  });
}

caf::result<acknowledged> on_load(worker_pointer self, const load_weights& what) {
  return post<acknowledged>(self,
                            [what](apprentice& who, share_outcome&) { return who.load(what); });
}

void on_outcome(worker_pointer self, const share_outcome& outcome) {
  auto to = self->state.waiting.extract(outcome.ticket);
  if (!to) return;
  auto report = outcome.report;
  if (!report.failure.empty()) report.failure = self->state.name + ": " + report.failure;
  const auto failure = to_caf({report.code, report.failure});
  if (auto* share = std::get_if<caf::typed_response_promise<share_done>>(&to.mapped())) {
    share->deliver(report);
  } else if (auto* read = std::get_if<caf::typed_response_promise<weights_piece>>(&to.mapped())) {
    if (outcome.weights)
      read->deliver(weights_piece{*outcome.weights});
    else
      read->deliver(failure);
  } else if (auto& load = std::get<caf::typed_response_promise<acknowledged>>(to.mapped());
             report.failure.empty()) {
    load.deliver(acknowledged{});
  } else {
    load.deliver(failure);
  }
}

/// Requests that wait fail with the reason for which the worker ends.
void give_up(worker_pointer self, const error& why) {
  for (auto& [ticket, to] : std::exchange(self->state.waiting, {}))
    std::visit([&](auto& promise) { promise.deliver(to_caf(why)); }, to);
}

worker_actor::behavior_type worker_behavior(worker_pointer self,
                                            const std::shared_ptr<requester>& ask,
                                            const learner_factory& make, const build_worker& order,
                                            const std::shared_ptr<messages::shared_memory>& memory,
                                            const std::shared_ptr<progress_board>& progress,
                                            const engine::stage_options& how) {
  auto& state = self->state;
  state.name = "worker-" + std::to_string(order.rank);
  state.apprentice_ = std::make_shared<result<std::unique_ptr<apprentice>>>();
  say_last_words(*self, state.name, [self](const error& why) { give_up(self, why); });
  state.work = std::make_unique<engine::work_thread>(
      state.name, order.threads, std::function<bool()>(), end_with_thread(*self, state.name));
  state.work->post([place = state.apprentice_, ask, make, order, memory, progress, how,
                    system = &self->system()] {
    try {
      *place = apprentice::make(*system, ask, make, order, memory, progress, how);
    } catch (const std::exception& problem) {
      *place = fail(errc::handler_failed, engine::reason_of(problem));
    }
  });
  return {
      [self](const run_share& share) { return on_share(self, share); },
      [self](const read_weights& what) {
        return on_read(self, [what](apprentice& who) { return who.weights(what); });
      },
      [self](const read_buffers& what) {
        return on_read(self, [what](apprentice& who) { return who.buffers(what); });
      },
      [self](const load_weights& what) { return on_load(self, what); },
      [self](const share_outcome& outcome) { on_outcome(self, outcome); },
  };
}

}  // namespace

worker_actor spawn_worker(caf::actor_system& system, std::shared_ptr<requester> ask,
                          const learner_factory& make, const build_worker& order,
                          std::shared_ptr<messages::shared_memory> memory,
                          std::shared_ptr<progress_board> progress,
                          const engine::stage_options& how) {
  return system.spawn(worker_behavior, std::move(ask), make, order, std::move(memory),
                      std::move(progress), how);
}

}  // namespace troupe::actors
