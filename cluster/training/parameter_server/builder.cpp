#include "cluster/training/parameter_server/builder.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/parameter_server/batch.hpp"
#include "engine/parameter_server/parts.hpp"
#include "engine/state/tensor_reader.hpp"

namespace troupe::cluster {
namespace {

constexpr auto waits = actors::usual_deadlines;

std::string name_of_shard(std::size_t number) {
  return "shard-" + std::to_string(number);
}

}  // namespace

result<built_server> server_builder::build(const server_start& from) {
  built_server made;
  auto parts = cut(from);
  if (!parts) return tl::unexpected(parts.error());
  made.parts = std::move(*parts);
  auto built = build_shards(made, from)
                   .and_then([&] { return build_coordinator(made, from); })
                   .and_then([&] { return build_workers(made, from); });
  if (!built) return tl::unexpected(built.error());
  return made;
}

actors::server_host_actor server_builder::host(std::size_t i) const {
  return caf::actor_cast<actors::server_host_actor>(group_.hosts().at(i));
}

result<std::vector<shard_part>> server_builder::cut(const server_start& from) const {
  auto parameters = first_parameters(run_);
  for (auto& each : parameters) {
    if (!from.file || from.file->skipped.contains(each.name)) continue;
    const auto place = engine::find_in(from.file->weight_files, each.name);
    auto read = place.file->read(*place.entry);
    if (!read) return tl::unexpected(read.error());
    each.values = read->to(each.values.scalar_type());
  }
  return engine::spread_parameters(std::move(parameters), run_.server.shards);
}

result<void> server_builder::build_shards(built_server& into, const server_start& from) {
  for (std::size_t i = 0; i < into.parts.size(); ++i)
    if (auto given = give_values(i, into, from); !given) return given;
  std::vector<actors::future<actors::shard_built>> asked;
  for (std::size_t i = 0; i < into.parts.size(); ++i)
    asked.push_back(ask_.request<actors::shard_built>(host(i), shard_order(i, into.parts[i], from),
                                                      waits.build));
  const auto built = actors::all(asked).get();
  if (!built) return tl::unexpected(built.error());
  for (const auto& each : *built)
    into.shards.push_back(caf::actor_cast<actors::shard_actor>(each.shard));
  return {};
}

/// Hands a shard's first values to its host, and what its optimizer goes on with, piece after
/// piece.
result<void> server_builder::give_values(std::size_t number, const built_server& of,
                                         const server_start& from) {
  std::vector<engine::named_tensor> values;
  for (const auto& each : of.parts[number])
    values.push_back({engine::part_name(each.name, each.first_row), each.values});
  if (from.file) {
    auto state = state_of_part(*from.file, of.parts, number);
    if (!state) return tl::unexpected(state.error());
    std::ranges::move(*state, std::back_inserter(values));
  }
  return actors::give_pieces(values, {}, [&](actors::tensor_piece piece) -> result<void> {
    return ask_
        .request<actors::acknowledged>(
            host(number), actors::shard_values{name_of_shard(number), std::move(piece)},
            waits.build)
        .get()
        .map([](const auto&) {});
  });
}

actors::build_shard server_builder::shard_order(std::size_t number, const shard_part& part,
                                                const server_start& from) const {
  std::vector<engine::parameter_entry> entries;
  for (const auto& each : part)
    entries.push_back({each.name, each.values.sizes().vec(),
                       static_cast<std::int32_t>(each.values.scalar_type()), each.by_rows,
                       each.first_row});
  return {.name = name_of_shard(number),
          .parameters = std::move(entries),
          .optimizer = optimizer_.name,
          .optimizer_options = optimizer_.options,
          .rate = {optimizer_.schedule, run_.plan.steps},
          .threads = run_.server.threads_per_shard,
          .begin = {from.steps}};
}

result<void> server_builder::build_coordinator(built_server& into, const server_start& from) {
  const auto& server = run_.server;
  actors::open_coordinator order{{}, server.mode, server.staleness, server.workers, {from.steps}};
  for (const auto& shard : into.shards)
    order.shards.push_back(caf::actor_cast<caf::strong_actor_ptr>(shard));
  const auto opened =
      ask_.request<actors::coordinator_opened>(host(0), std::move(order), waits.build).get();
  if (!opened) return tl::unexpected(opened.error());
  into.coordinator = caf::actor_cast<actors::coordinator_actor>(opened->coordinator);
  return {};
}

result<void> server_builder::build_workers(built_server& into, const server_start& from) {
  const auto& server = run_.server;
  std::vector<actors::future<actors::worker_built>> asked;
  for (std::uint32_t i = 0; i < server.workers; ++i) {
    auto order = run_.worker;
    order.rank = i;
    order.metrics = engine::names_of(run_.plan.metrics);
    order.coordinator = caf::actor_cast<caf::strong_actor_ptr>(into.coordinator);
    asked.push_back(
        ask_.request<actors::worker_built>(host(server.shards + i), order, waits.build));
  }
  const auto built = actors::all(asked).get();
  if (!built) return tl::unexpected(built.error());
  for (const auto& each : *built) {
    into.workers.push_back(caf::actor_cast<actors::worker_actor>(each.worker));
    if (!from.file) continue;
    const auto number = into.workers.size() - 1;
    if (auto given = give_buffers(number, into.workers.back(), *from.file); !given) return given;
  }
  return {};
}

result<void> server_builder::give_buffers(std::size_t worker, const actors::worker_actor& to,
                                          const checkpoint& from) {
  const auto buffers = buffers_of(from, run_.layers, worker);
  if (!buffers) return tl::unexpected(buffers.error());
  if (buffers->empty()) return {};
  return actors::give_pieces(*buffers, {}, [&](actors::tensor_piece piece) -> result<void> {
    return ask_
        .request<actors::acknowledged>(
            to, actors::load_weights{.piece = std::move(piece), .partly = true}, waits.build)
        .get()
        .map([](const auto&) {});
  });
}

}  // namespace troupe::cluster
