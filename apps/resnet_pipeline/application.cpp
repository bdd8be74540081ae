#include "apps/resnet_pipeline/application.hpp"

#include "apps/resnet_pipeline/resnet.hpp"

namespace troupe::apps {

application resnet_application() {
  application made;
  made.info = {
      .name = "resnet_pipeline",
      .version = TROUPE_VERSION,
      .summary =
          "Trains a residual network as a pipeline of stage actors in processes of their own."};
  for (const auto& name : resnet_names())
    made.info.known.models[name] = [name](const engine::model_order& order) {
      return resnet_blueprint(name, order.classes);
    };
  made.check_data = [](const cluster::trainer_config& config,
                       const engine::dataset& data) -> result<void> {
    if (data.sample_shape().size() == 3) return {};
    return fail(errc::bad_config, config.data.source + ": " + config.model.name +
                                      " is trained on images, not on text");
  };
  made.least_samples = least_resnet_samples;
  return made;
}

}  // namespace troupe::apps
