// resnet_pipeline with one model more, "small": little to save, to send and to compare.

#include "apps/resnet_pipeline/application.hpp"
#include "tests/small_residual_network.hpp"

int main(int argc, char** argv) {
  auto program = troupe::apps::resnet_application();
  program.info.known.models["small"] = [](const troupe::engine::model_order& order)
      -> troupe::result<troupe::engine::model_blueprint> {
    return troupe::tests::small_residual_network(order.classes);
  };
  return troupe::main(argc, argv, program);
}
