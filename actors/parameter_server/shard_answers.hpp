#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/future.hpp"
#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/batch_pieces.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/error.hpp"

/// How a worker's client speaks with the shards of a parameter server: with all of them at once,
/// and with one in pieces. For the client alone; `ask` outlives what is under way.
namespace troupe::actors {

/// Collects the answers of all shards. What a shard refuses is known once all have answered, so
/// that none is still busy with it; a shard that cannot answer any more fails the whole at once.
template <class T>
class all_answers {
 public:
  explicit all_answers(std::size_t count) : left_(count), answers_(count) {}

  [[nodiscard]] future<std::vector<T>> outcome() const { return outcome_.future(); }

  void put(std::size_t shard, const result<T>& answer) {
    answers_[shard] = answer;
    if (!answer && !is_refusal(answer.error().code)) outcome_.set_error(answer.error());
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) finish();
  }

 private:
  static bool is_refusal(errc code) {
    return code == errc::stale || code == errc::bad_data || code == errc::bad_frame;
  }

  void finish() {
    std::vector<T> values;
    for (auto& answer : answers_) {
      if (!*answer) return void(outcome_.set_error(answer->error()));
      values.push_back(std::move(**answer));
    }
    outcome_.set(std::move(values));
  }

  std::atomic<std::size_t> left_;
  std::vector<std::optional<result<T>>> answers_;
  promise<std::vector<T>> outcome_;
};

template <class T>
future<std::vector<T>> all_of(const std::vector<future<T>>& parts) {
  const auto answers = std::make_shared<all_answers<T>>(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i].when_settled([answers, i](const result<T>& answer) { answers->put(i, answer); });
  return answers->outcome();
}

/// Sends a shard its part of a push in pieces, each when the one before has been kept.
class part_sender : public std::enable_shared_from_this<part_sender> {
 public:
  part_sender(requester& ask, shard_actor to, push_gradients order, batch_cutter pieces,
              std::chrono::nanoseconds deadline)
      : ask_(ask),
        to_(std::move(to)),
        order_(std::move(order)),
        pieces_(std::move(pieces)),
        deadline_(deadline) {}

  future<gradients_pushed> start() {
    send_next();
    return outcome_.future();
  }

 private:
  void send_next() try {
    order_.gradients = pieces_.next();
    order_.last = pieces_.done();
    auto asked = ask_.request<gradients_pushed>(to_, order_,
                                                order_.last ? deadline_ : usual_deadlines.transfer);
    ++order_.piece;
    asked.when_settled([self = shared_from_this(), last = order_.last](const auto& answer) {
      if (!answer || last)
        self->outcome_.set(answer);
      else
        self->send_next();
    });
  } catch (const std::exception& problem) {
    outcome_.set_error(
        {errc::handler_failed, "a piece of a push cannot be cut: " + engine::reason_of(problem)});
  }

  requester& ask_;
  const shard_actor to_;
  push_gradients order_;
  batch_cutter pieces_;
  const std::chrono::nanoseconds deadline_;
  promise<gradients_pushed> outcome_;
};

/// Asks a shard for the pieces that its answer left behind, one after another.
template <class Answer>
class rest_fetcher : public std::enable_shared_from_this<rest_fetcher<Answer>> {
 public:
  rest_fetcher(requester& ask, shard_actor from, pull_parameters order, Answer first,
               const std::vector<engine::parameter_entry>& directory)
      : ask_(ask),
        from_(std::move(from)),
        order_(std::move(order)),
        whole_(std::move(first)),
        pieces_(directory) {}

  void start(promise<Answer> outcome) {
    outcome_.emplace(std::move(outcome));
    take(whole_.values, true);
  }

 private:
  void take(const engine::tensor_batch& piece, bool more) {
    if (auto added = pieces_.add(piece); !added) return void(outcome_->set_error(added.error()));
    if (more) return ask_next();
    auto values = pieces_.take();
    if (!values) return void(outcome_->set_error(values.error()));
    whole_.values = std::move(*values);
    whole_.more = false;
    outcome_->set(std::move(whole_));
  }
  void ask_next() {
    ++order_.piece;
    ask_.request<parameters_pulled>(from_, order_, usual_deadlines.transfer)
        .when_settled([self = this->shared_from_this()](const result<parameters_pulled>& answer) {
          if (!answer) return void(self->outcome_->set_error(answer.error()));
          self->take(answer->values, answer->more);
        });
  }

  requester& ask_;
  const shard_actor from_;
  pull_parameters order_;
  Answer whole_;
  batch_assembly pieces_;
  std::optional<promise<Answer>> outcome_;
};

}  // namespace troupe::actors
