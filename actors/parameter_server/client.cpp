#include "actors/parameter_server/client.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <atomic>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/tensors.hpp"
#include "actors/parameter_server/batch_pieces.hpp"
#include "actors/parameter_server/shard_answers.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/parameter_server/batch.hpp"

namespace troupe::actors {

/// What continuations, which may outlive the client, use too.
struct parameter_client::shared {
  /// Puts a shard's values to those of the others; `all` has the oldest version.
  void add_values(fresh_values& all, std::size_t shard, param_version version,
                  const engine::tensor_batch& batch) const;
  /// The values of all shards, one answer each, which the client has from now on.
  template <class Answer>
  fresh_values merge(const std::vector<Answer>& answers);

  std::vector<shard_handle> shards;
  std::vector<std::optional<param_version>> have;  // by shard; written while a request is under way
  std::atomic<bool> pushing = false;
  future<void> lost;
};

namespace {

/// The oldest of the versions; 0 before the first.
param_version oldest(const std::vector<std::optional<param_version>>& versions) {
  param_version least{~std::uint64_t{0}};
  for (const auto& each : versions) least = std::min(least, each.value_or(param_version{}));
  return least;
}

/// Which rows of the whole parameter these are; undefined: all of them.
at::Tensor whole_rows(const engine::parameter_entry& part, bool is_cut, const at::Tensor& rows) {
  if (!is_cut) return rows;
  if (rows.defined()) return rows.add(part.first_row);
  return at::arange(part.first_row, part.first_row + part.shape.front(), at::kLong);
}

constexpr fresh_values no_values() {
  return {{~std::uint64_t{0}}, {}};
}

at::Tensor on_the_wire(const at::Tensor& values, bool bf16) {
  // Most need none of these, and each costs a small gradient as much as its copy.
  auto plain = values.requires_grad() ? values.detach() : values;
  if (!plain.is_cpu()) plain = plain.cpu();
  if (!plain.is_contiguous()) plain = plain.contiguous();
  return bf16 && plain.scalar_type() == at::kFloat ? plain.to(at::kBFloat16) : plain;
}

/// Lives as long as the membership: the coordinator watches it. Watches the coordinator and the
/// shards.
caf::behavior presence(caf::event_based_actor* self, promise<void> gone) {
  const auto lost = std::make_shared<promise<void>>(std::move(gone));
  self->set_down_handler([lost](const caf::down_msg& down) {
    const auto why = down.reason ? ": " + from_caf(down.reason).text : std::string();
    lost->set_error({errc::peer_lost, "a part of the parameter server is gone" + why});
  });
  return {[self](const server_joined& in, const caf::strong_actor_ptr& coordinator) {
    self->monitor(caf::actor_cast<caf::actor>(coordinator));
    for (const auto& each : in.shards) self->monitor(caf::actor_cast<caf::actor>(each.shard));
  }};
}

tl::unexpected<error> unknown(const std::string& name, const char* what) {
  return fail(errc::bad_data,
              std::string(what) + " '" + name + "', which no shard of the parameter server has");
}

}  // namespace

void parameter_client::shared::add_values(fresh_values& all, std::size_t shard,
                                          param_version version,
                                          const engine::tensor_batch& batch) const {
  const auto& [actor, directory, is_cut] = shards[shard];
  all.version = std::min(all.version, version);
  const auto entries = engine::unpack(batch, directory);
  if (!entries) throw std::runtime_error(entries.error().text);
  for (const auto& [parameter, rows, values] : *entries) {
    const auto& part = directory[parameter];
    all.values.push_back({part.name, whole_rows(part, is_cut[parameter], rows), values});
  }
}

template <class Answer>
fresh_values parameter_client::shared::merge(const std::vector<Answer>& answers) {
  auto all = no_values();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    add_values(all, i, answers[i].version, answers[i].values);
    have[i] = answers[i].version;
  }
  return all;
}

parameter_client::parameter_client(caf::actor_system& system, requester& ask,
                                   coordinator_actor coordinator, client_options options)
    : system_(system),
      ask_(ask),
      coordinator_(std::move(coordinator)),
      options_(options),
      shared_(std::make_shared<shared>()),
      presence_([&] {
        promise<void> gone;
        shared_->lost = gone.future();
        return system.spawn(presence, std::move(gone));
      }()) {}

result<std::unique_ptr<parameter_client>> parameter_client::join(
    caf::actor_system& system, requester& ask, const coordinator_actor& coordinator,
    client_options options) {
  std::unique_ptr<parameter_client> made(new parameter_client(system, ask, coordinator, options));
  const auto in =
      ask.request<server_joined>(
             coordinator,
             join_server{options.rank, caf::actor_cast<caf::strong_actor_ptr>(made->presence_)},
             options.deadline)
          .get();
  if (!in) return tl::unexpected(in.error());
  if (auto known = made->enter(*in); !known) return tl::unexpected(known.error());
  return made;
}

result<void> parameter_client::enter(const server_joined& in) {
  id_ = in.worker;
  caf::anon_send(presence_, in, caf::actor_cast<caf::strong_actor_ptr>(coordinator_));
  shared_->have.resize(in.shards.size());
  for (std::uint32_t s = 0; s < in.shards.size(); ++s) {
    const auto& [actor, parameters] = in.shards[s];
    shared_->shards.push_back({caf::actor_cast<shard_actor>(actor), parameters});
    for (std::uint32_t i = 0; i < parameters.size(); ++i) {
      const auto& part = parameters[i];
      const auto rows = part.by_rows && !part.shape.empty() ? part.shape.front() : 0;
      places_[part.name].push_back({s, i, part.first_row, rows});
      const auto [whole, is_new] = parameters_.emplace(part.name, part);
      if (!is_new && rows == 0)
        return fail(errc::bad_config, "two shards have '" + part.name + "', and not by rows");
      if (!is_new) whole->second.shape.front() += rows;
      whole->second.first_row = 0;
    }
  }
  for (auto& shard : shared_->shards)
    for (const auto& part : shard.parameters) shard.is_cut.push_back(places_[part.name].size() > 1);
  return {};
}

parameter_client::~parameter_client() {
  caf::anon_send_exit(presence_, caf::exit_reason::user_shutdown);
}

result<void> parameter_client::leave() {
  const auto left =
      ask_.request<acknowledged>(coordinator_, leave_server{id_}, options_.deadline).get();
  return left ? result<void>() : tl::unexpected(left.error());
}

future<void> parameter_client::lost() const {
  return shared_->lost;
}

param_version parameter_client::version() const {
  return oldest(shared_->have);
}

result<std::vector<engine::tensor_batch>> parameter_client::split(
    const std::vector<engine::named_tensor>& gradients) const {
  const lendable_tensors lendable(options_.memory);
  const auto type = options_.bf16_gradients ? at::kBFloat16 : at::kFloat;
  std::vector<engine::batch_builder> parts(shared_->shards.size(), engine::batch_builder(type));
  for (const auto& [name, gradient] : gradients) {
    if (!gradient.defined()) continue;
    const auto place = places_.find(name);
    if (place == places_.end()) return unknown(name, "there is a gradient of");
    const auto& shape = parameters_.at(name).shape;
    if (gradient.sizes() != at::IntArrayRef(shape)) {  // packed, it would lose its shape
      std::ostringstream why;
      why << "the gradient of '" << name << "' has shape " << gradient.sizes()
          << ", and the parameter " << at::IntArrayRef(shape);
      return fail(errc::bad_data, why.str());
    }
    if (gradient.layout() != at::kSparse) {
      add_gradient(parts, place->second, {}, on_the_wire(gradient, options_.bf16_gradients));
      continue;
    }
    const auto rows = gradient.coalesce();
    if (rows.sparse_dim() != 1)
      return fail(errc::bad_data, "the sparse gradient of '" + name + "' is not one of rows");
    add_gradient(parts, place->second, rows.indices().select(0, 0).contiguous(),
                 on_the_wire(rows.values(), options_.bf16_gradients));
  }
  std::vector<engine::tensor_batch> batches;
  for (auto& part : parts) batches.push_back(part.take());
  return batches;
}

// `rows` are sorted, each there once; undefined: all.
void parameter_client::add_gradient(std::vector<engine::batch_builder>& parts,
                                    const std::vector<piece>& pieces, const at::Tensor& rows,
                                    const at::Tensor& values) {
  if (pieces.size() == 1) return parts[pieces[0].shard].add(pieces[0].index, rows, values);
  for (const auto& [shard, index, first, count] : pieces) {
    if (!rows.defined()) {
      parts[shard].add(index, {}, values.narrow(0, first, count));
      continue;
    }
    const std::span all(rows.const_data_ptr<std::int64_t>(),
                        static_cast<std::size_t>(rows.numel()));
    const auto begin = std::ranges::lower_bound(all, first) - all.begin();
    const auto end = std::ranges::lower_bound(all, first + count) - all.begin();
    if (begin == end) continue;
    parts[shard].add(index, rows.narrow(0, begin, end - begin).sub(first),
                     values.narrow(0, begin, end - begin));
  }
}

template <class Answer, class Request>
future<Answer> parameter_client::ask(std::size_t shard, Request request) {
  const auto& to = shared_->shards[shard];
  request.most = options_.most;
  auto asked = [&] {
    if constexpr (std::is_same_v<Request, push_gradients>) {
      if (!fits(request.gradients, options_.most.frame)) {
        batch_cutter pieces(std::move(request.gradients), to.parameters, options_.most.piece);
        return std::make_shared<part_sender>(ask_, to.actor, std::move(request), std::move(pieces),
                                             options_.deadline)
            ->start();
      }
    }
    return ask_.request<Answer>(to.actor, std::move(request), options_.deadline);
  }();
  promise<Answer> outcome;
  auto whole = outcome.future();
  asked.when_settled([ask = &ask_, shared = shared_, shard, worker = id_,
                      outcome = std::move(outcome)](const result<Answer>& answer) mutable {
    if (!answer || !answer->more) return void(outcome.set(answer));
    const auto& [actor, directory, is_cut] = shared->shards[shard];
    std::make_shared<rest_fetcher<Answer>>(
        *ask, actor, pull_parameters{.wanted = {}, .newer_than = {}, .worker = worker}, *answer,
        directory)
        ->start(std::move(outcome));
  });
  return whole;
}

future<std::vector<gradients_pushed>> parameter_client::push_parts(
    const std::vector<engine::named_tensor>& gradients, param_version base, bool pull) {
  using answers = std::vector<gradients_pushed>;
  auto parts = split(gradients);
  if (!parts) return settled_future<answers>(tl::unexpected(parts.error()));
  if (shared_->pushing.exchange(true))
    return settled_future<answers>(fail(errc::bad_config, "a push of this worker is under way"));
  ++sequence_;
  std::vector<future<gradients_pushed>> asked;
  for (std::size_t i = 0; i < parts->size(); ++i) {
    asked.push_back(ask<gradients_pushed>(i, push_gradients{.what = {{id_, sequence_}, base},
                                                            .gradients = std::move((*parts)[i]),
                                                            .pull = pull,
                                                            .newer_than = shared_->have[i]}));
  }
  auto outcome = all_of(asked);
  outcome.when_settled([shared = shared_](const auto&) { shared->pushing = false; });
  return outcome;
}

future<param_version> parameter_client::push(const std::vector<engine::named_tensor>& gradients,
                                             param_version base) {
  return push_parts(gradients, base, false).then([](const std::vector<gradients_pushed>& answers) {
    return answers.front().applied;
  });
}

future<fresh_values> parameter_client::push_pull(
    const std::vector<engine::named_tensor>& gradients) {
  return push_parts(gradients, version(), true)
      .then([shared = shared_](const std::vector<gradients_pushed>& answers) {
        return shared->merge(answers);
      });
}

future<fresh_values> parameter_client::refresh() {
  std::vector<future<parameters_pulled>> asked;
  for (std::size_t i = 0; i < shared_->shards.size(); ++i)
    asked.push_back(ask<parameters_pulled>(i, pull_parameters{{}, shared_->have[i], id_}));
  return all_of(asked).then([shared = shared_](const std::vector<parameters_pulled>& answers) {
    return shared->merge(answers);
  });
}

future<fresh_values> parameter_client::pull(const std::vector<std::string>& names,
                                            std::optional<param_version> newer_than) {
  std::vector<std::vector<std::uint32_t>> wanted(shared_->shards.size());
  for (const auto& name : names) {
    const auto place = places_.find(name);
    if (place == places_.end())
      return settled_future<fresh_values>(unknown(name, "a pull asks for"));
    for (const auto& part : place->second) wanted[part.shard].push_back(part.index);
  }
  std::vector<std::size_t> from;
  std::vector<future<parameters_pulled>> asked;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!names.empty() && wanted[i].empty()) continue;
    from.push_back(i);
    asked.push_back(ask<parameters_pulled>(i, pull_parameters{wanted[i], newer_than, id_}));
  }
  return all_of(asked).then(
      [shared = shared_, from](const std::vector<parameters_pulled>& answers) {
        auto all = no_values();
        for (std::size_t i = 0; i < answers.size(); ++i)
          shared->add_values(all, from[i], answers[i].version, answers[i].values);
        return all;
      });
}

result<void> take_values(const std::vector<engine::named_tensor>& parameters,
                         const std::map<std::string, engine::parameter_entry>& directory,
                         const fresh_values& from) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) by_name.emplace(name, tensor);
  for (const auto& [name, rows, values] : from.values) {
    const auto found = by_name.find(name);
    const auto known = directory.find(name);
    if (found == by_name.end() || known == directory.end())
      return fail(errc::bad_data, "the model has no parameter '" + name + "'");
    if (found->second.sizes() != at::IntArrayRef(known->second.shape))
      return fail(errc::bad_data, "parameter '" + name + "' has another shape in the model");
    if (rows.defined())
      found->second.index_copy_(0, rows, values);
    else if (known->second.by_rows)
      found->second.copy_(values);
    else
      found->second.set_data(values);
  }
  return {};
}

}  // namespace troupe::actors
