#include "apps/parameter_server/learners.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/parameter_server/clicks.hpp"
#include "apps/parameter_server/embedding.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "engine/data/class_count.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::apps {
namespace {

constexpr const char* wide = "wide";
constexpr std::int64_t width = 16;
constexpr std::int64_t hidden = 64;

actors::learner wide_learner(const clicks_shape& shape, std::int64_t classes, std::uint64_t seed) {
  const auto random = at::detail::createCPUGenerator(seed);
  actors::learner made;
  made.data = open_clicks(shape, seed);
  auto tables = std::make_unique<embeddings>("fields", shape.fields, shape.rows, width, random);
  for (const auto& each : tables->parameters()) made.by_rows.push_back(each.name);
  made.layers.push_back(std::move(tables));
  made.layers.push_back(
      std::make_unique<engine::linear>("hidden", shape.fields * width, hidden, random));
  made.layers.push_back(std::make_unique<engine::relu>("relu"));
  made.layers.push_back(std::make_unique<engine::linear>("scores", hidden, classes, random));
  return made;
}

}  // namespace

std::optional<learner_fault> fault_of(const std::string& model, const std::string& data) {
  const auto known = resnet_names();
  if (model != wide && std::ranges::find(known, model) == known.end()) {
    std::vector<std::string_view> names{wide};
    names.insert(names.end(), known.begin(), known.end());
    return learner_fault{"model.name", unknown_value(model, names)};
  }
  if ((model == wide) != is_clicks(data))
    return learner_fault{"model.name", model + " cannot learn from " + data +
                                           "; wide learns from clicks:FIELDS:ROWS[:COUNT], the "
                                           "others from images"};
  if (!is_clicks(data)) return std::nullopt;
  const auto shape = parse_clicks(data);
  if (shape) return std::nullopt;
  return learner_fault{"data.source", shape.error().text};
}

result<actors::learner> make_learner(const actors::build_worker& order) {
  if (const auto wrong = fault_of(order.model, order.data))
    return tl::unexpected(error_about(wrong->setting, {errc::bad_config, wrong->why}));
  if (order.model != wide)
    return image_learner(order, [&order](std::int64_t classes) {
      return build_resnet(order.model, classes, order.seed);
    });
  const auto shape = parse_clicks(order.data);
  if (!shape) return tl::unexpected(shape.error());
  const auto classes = engine::choose_classes(order.classes, 2);
  if (!classes) return tl::unexpected(error_about("model.classes", classes.error()));
  return wide_learner(*shape, *classes, order.seed);
}

result<actors::learner> image_learner(
    const actors::build_worker& order,
    const std::function<result<engine::model>(std::int64_t classes)>& build) {
  auto data = engine::open_dataset({.source = order.data,
                                    .image_size = order.image_size,
                                    .seed = order.seed,
                                    .threads = 1,
                                    .strict = order.strict,
                                    .warn = {}});
  if (!data) return tl::unexpected(error_about("data.source", data.error()));
  const auto classes = engine::choose_classes(order.classes, (*data)->classes());
  if (!classes) return tl::unexpected(error_about("model.classes", classes.error()));
  auto layers = build(*classes);
  if (!layers) return tl::unexpected(layers.error());
  return actors::learner{std::move(*layers), std::move(*data), {}};
}

std::int64_t least_share(const actors::build_worker& order, const engine::dataset& data) {
  return order.model == wide ? 1 : least_resnet_samples(data.sample_shape());
}

}  // namespace troupe::apps
