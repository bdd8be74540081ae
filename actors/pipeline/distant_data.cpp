#include "actors/pipeline/distant_data.hpp"

#include <utility>

#include "actors/base/deadlines.hpp"

namespace troupe::actors {

result<std::shared_ptr<const distant_data>> distant_data::open(
    caf::actor_system& system, node_names names, const host_actor& host,
    const engine::dataset_options& options) {
  std::shared_ptr<distant_data> made(new distant_data(system, std::move(names)));
  const auto opened = made->ask_
                          .request<data_opened>(host,
                                                open_data{.source = options.source,
                                                          .context = options.context,
                                                          .image_size = options.image_size,
                                                          .seed = options.seed,
                                                          .threads = options.threads,
                                                          .strict = options.strict},
                                                usual_deadlines.build)
                          .get();
  if (!opened) return tl::unexpected(opened.error());
  made->reader_ = caf::actor_cast<data_actor>(opened->data);
  const auto what =
      made->ask_.request<data_described>(made->reader_, describe_data{}, usual_deadlines.transfer)
          .get();
  if (!what) return tl::unexpected(what.error());
  made->what_ = *what;
  return made;
}

result<engine::batch> distant_data::read(engine::split part,
                                         std::span<const std::int64_t> indices) const {
  const auto samples =
      ask_.request<samples_read>(reader_,
                                 read_samples{part == engine::split::test, to_tensor(indices)},
                                 usual_deadlines.read)
          .get();
  if (!samples) return tl::unexpected(samples.error());
  return engine::batch{samples->inputs, samples->labels};
}

std::uint64_t distant_data::skipped() const {
  const auto what =
      ask_.request<data_described>(reader_, describe_data{}, usual_deadlines.last_word).get();
  return what ? what->skipped : what_.skipped;
}

result<engine::left_out_samples> distant_data::left_out() const {
  auto what =
      ask_.request<data_described>(reader_, describe_data{}, usual_deadlines.transfer).get();
  if (!what) return tl::unexpected(what.error());
  return engine::left_out_samples{std::move(what->left_out_train), std::move(what->left_out_test)};
}

result<std::string> distant_data::digest() const {
  auto what =
      ask_.request<data_described>(reader_, describe_data{.digested = true}, usual_deadlines.build)
          .get();
  if (!what) return tl::unexpected(what.error());
  return std::move(what->digest);
}

}  // namespace troupe::actors
