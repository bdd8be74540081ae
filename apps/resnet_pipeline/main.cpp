#include "apps/resnet_pipeline/application.hpp"

int main(int argc, char** argv) {
  return troupe::main(argc, argv, troupe::apps::resnet_application());
}
